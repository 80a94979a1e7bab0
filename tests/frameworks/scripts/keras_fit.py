"""A Keras model with PyTorch as its backend, with validation: keras_fit.py STEPS"""

import os
import sys

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy
from digest import digest

keras.utils.set_random_seed(1)
x = numpy.random.rand(int(sys.argv[1]) // 10 * 16, 16)
y = x.sum(1, keepdims=True)
model = keras.Sequential([keras.layers.Dense(32, activation="relu"), keras.layers.Dense(1)])
model.compile(optimizer="adam", loss="mse")
model.fit(x, y, batch_size=16, epochs=10, verbose=0, validation_data=(x[:64], y[:64]))
print("weights", digest(model.get_weights()))
