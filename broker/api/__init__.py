"""From a frame to a handler and back: dispatch, the registry of APIs, what a handler knows of its request."""
