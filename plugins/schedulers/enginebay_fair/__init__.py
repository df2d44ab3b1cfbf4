"""Fair shares: a scheduler that serves next whichever tenant was served least."""
