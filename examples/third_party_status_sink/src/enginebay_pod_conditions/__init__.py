"""How the workers stand, as conditions of their Kubernetes pod: a status sink for enginebay."""
