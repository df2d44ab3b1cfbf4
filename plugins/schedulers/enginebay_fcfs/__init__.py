"""First come, first served: the scheduler that the engine uses unless told otherwise."""
