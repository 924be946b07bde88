"""This broker in its cluster: metadata, the metadata store, automatic topic creation, the controller's channel."""
