"""Known vulnerabilities of what is in an image, by a database file in the OSV format that the user gives."""
