"""A graph pass for enginebay: what is done twice and changes nothing the second time is done once."""
