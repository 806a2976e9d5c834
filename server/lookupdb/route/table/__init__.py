"""The routing table: read, judged, brought to life, put into effect."""
