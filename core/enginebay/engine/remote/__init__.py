"""An engine in another process, as one of this process: the link, the requests that wait, the port."""
