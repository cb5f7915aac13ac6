"""The baselines that the Sentence-BERT paper compares itself with, each an `Embedder` or a `PairScorer`.

open.py              from `glove:FILE`, `tfidf`, `average:FOLDER` … to the baseline
words.py             how a text is cut into words
vectors_file.py      tables of word vectors in GloVe's and word2vec's text format
word_vectors.py      averaged word vectors
train_vectors.py     word vectors trained by gensim
corpus.py            the texts of a corpus
tfidf.py             tf-idf cosine
transformer.py       averaged outputs, or the first output, of a transformer without sentence tuning
labelled_pairs.py    pairs of texts with a class
bilstm.py            BiLSTM-max (InferSent)
train_bilstm.py      its training
"""
