"""The sinks that come with the core, entered by the same door as everybody's: memory, SQLite, HTTP."""
