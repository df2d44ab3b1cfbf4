"""What is asked of a running group beside requests: sleep, weights, drain, calls on the workers."""
