"""What this machine offers, and what runs on it where: the doctor."""
