"""An engine that serves front ends in other processes: who they are, what they asked, what they were sent."""
