"""What a person with a kernel or a model runs: a folder for each verb, and what verbs share.

trace diagnose sweep identify check check_cast watch bench look   the verbs
cli report results tensors   options, pages and pictures, files of results, tensors as users store
                             them
"""
