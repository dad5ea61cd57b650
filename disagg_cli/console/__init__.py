"""All that people see: tables, the live view of a launch, JSON documents."""
