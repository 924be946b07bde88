"""Who leads what: coordination stores, election, assignment and the controller itself."""
