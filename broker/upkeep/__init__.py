"""What a broker does by itself, over and over."""
