"""The error of TLS settings."""


class TlsConfigError(Exception):
    """TLS settings that cannot be used: one line that names the key and says what to do. It contains no secret."""
