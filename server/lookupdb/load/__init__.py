"""`lookupdb load`: put a load on a router, and measure it. The modules, in the order of a load:

plan    the target, the times of requests and their keys; the messages to and from senders
run     one request as a check; start and watch sender processes; show progress
sender  the open loop of one process: send requests and judge answers
result  reports become histograms, points over time, and a document, which is judged and rendered
report  the document as an HTML page or an SVG drawing

Latency counts from the intended time of a request, so that a stalled router is charged for all requests that waited.
"""
