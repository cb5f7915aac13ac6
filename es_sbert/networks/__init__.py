"""Networks in torch (extra `train`): what is trained, measured and compared with exported graphs.

siamese.py        the siamese encoder; pooling.py, unit.py, token_types.py its parts, folder.py opens and writes it
padding_mask.py   attention masks that are used without being read
cross_encoder.py  reads both texts together; cross_encoder_folder.py opens and writes it
poly_encoder.py   in between; attention.py its two attentions
pair_folder.py    from a folder to whichever scores pairs; pair_scores.py what both share
"""
