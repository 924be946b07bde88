"""Recordings of clients' requests and of the responses: `recording.py` has the recording of a broker or a cluster,
`recorded_request.py` one request and its outcome, `chart.py` draws sequence charts.
"""
