"""The shell: connections, dispatch, one handler file per API, replication, coordinators, command line."""
