"""This broker in its cluster: metadata, the metadata store, topics made on demand, the controller's channel."""
