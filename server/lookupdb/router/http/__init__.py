"""HTTP on the public port.

connection  one client: its requests, and their answers in order; repeated requests, which skip the parser
request     cuts requests out of bytes; decodes targets, Accept fields and batches
exchanges   a request that waits for its answer: a key, a batch, the dataset's description, the console
traces      spans of sampled requests
problems    answers and problems as bytes, and HTTP's limits
"""
