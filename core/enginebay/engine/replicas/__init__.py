"""Several groups behind one face: which of them takes a request, and how their answers are gathered."""
