"""From a frame to a handler and back: dispatch, the registry of APIs, the request context."""
