"""From a frame to a handler and back: dispatch, the declaration of an API, the context of a request.

- `dispatch.py` decodes a frame, calls the handler, encodes the response, and is the boundary for unexpected errors.
- `registry.py` is the declaration of an API, `HANDLER` in its file of `broker/handlers/`.
- `context.py` is what a handler is given: the session, the services, and what the client may do.
- `authorization.py` asks the authorizer about the many resources of one request, and about the cluster.
- `authentication.py` refuses requests before a login, on listeners of SASL and on that of brokers alone of
  `serve --brokers`, and carries logins out.
- `local.py` is a client in the broker's own process, with the limits of others; `first_users.py` adds users by it.
- `metering.py` counts requests for the quotas of their clients, once there is a quota.
- `large_requests.py` limits how many large requests are served at the same time; `large_replies.py` makes large replies
  one after the other, with rests in between.

For handlers: `reply_room.py` limits the size of a response; `current_leader.py` names the leader in responses to
Produce and Fetch; `token_requests.py` says who may request delegation tokens. `response_errors.py` finds error codes
for the metrics.
"""
