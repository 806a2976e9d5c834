"""`lookupdb load`: a load on a router, and what comes of it.

schedule        when requests are to be sent; pure
key_choice, requests   what is asked, as bytes
sender          the open loop of one process, over connection; answers says what an answer means, tally counts
sender_process  the program of a sender; sender_plan is what it is told, capacity what it can
crew            the senders of a load, and their reports
recording       reports become histograms and points over time; result is the document
fail_if         conditions on a result
display, summary, plots   what people see
preflight       one request of each kind before the load: what cannot be asked is refused in a sentence
key_source      the keys: a file's lines, or a sample; generation_sample takes that of a generation

Latency counts from the intended time of a request, so that a router that stalls is charged for all that had to wait.
"""
