"""What a request must be before it is taken: checked in the front end, against the limits that the engine gives."""
