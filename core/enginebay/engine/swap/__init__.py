"""Other parts for a running group: what is wanted, whether it fits what runs, and the exchange."""
