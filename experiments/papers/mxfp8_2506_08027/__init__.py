"""The claims of arXiv 2506.08027, tested on a small GPT and on the student-teacher proxy."""
