"""The commands of `stratamq pipeline`, one file a job."""
