"""`lookupdb load`: a load on a router, and what comes of it. The journey of a load:

plan    what it is: where requests go, when they are due, which keys they ask for. What senders receive and report
run     the router is asked once; sender processes are started and watched; progress is shown
sender  the open loop of one process: it sends requests and judges their answers
result  the reports of senders become histograms, points over time, and a document; it is judged and becomes text
report  the document as a page or a drawing

Latency counts from the intended time of a request, so a router that stalls is charged for everything that had to wait.
"""
