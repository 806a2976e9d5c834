"""Everything that is sent to the API server but for watches: requests by path, what is written, what is listed."""
