"""What a request waits for: keys that were asked for, until they are answered or their deadline has passed."""
