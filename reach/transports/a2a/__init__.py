"""A2A agents as members of the fleet (API-3): we are their client.

Loaded with the first agent that is adopted, for the A2A SDK takes half a second; it is the extra `a2a`.

    card.py          what a card says, as a registration
    calls.py         one client for three bindings and two versions of A2A
    lenient.py       what of it takes answers that are not quite right
    guarded_http.py  its HTTP, through our guard
    messages.py      a task as a message, with what its context does not know yet
    contexts.py      which remote context a session has
    told.py          what comes back, as frames of our contract
    handle.py        where an attempt can be asked about
    attempt.py       one attempt, from message to outcome     line.py       all of one agent
    endpoint.py      the way there and its probes, behind the seam of endpoints that are dialled
"""
