"""Opening logs that exist, after a clean stop and after a crash."""
