"""The claims of arXiv 2510.04212 (Qiu and Yao), with verdicts: `roundscope reproduce qiu-yao`."""
