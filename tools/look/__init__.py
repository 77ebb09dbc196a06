"""Commands that show numbers and this machine: formats, sites, explain, studies, doctor."""
