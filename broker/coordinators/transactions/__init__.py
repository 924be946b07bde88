"""Transactions: the coordinator of transactional producers, a pure machine and its shell."""
