"""The peer of single contractions: sgemm of the BLAS the loader finds, on the shapes of bench/gemm.c. Prints name and GFLOP/s."""
import ctypes
import statistics
import sys
import time

import numpy as np

# name, M, N, K, form: NN, TN (A transposed) or NT (B transposed)
SHAPES = [("qkv fwd", 256, 2304, 768, "NT"), ("qkv dX", 256, 768, 2304, "NN"), ("qkv dW", 2304, 768, 256, "TN"), ("fc fwd", 256, 3072, 768, "NT"),
          ("fc dX", 256, 768, 3072, "NN"), ("fc dW", 3072, 768, 256, "TN"), ("proj fwd", 256, 768, 3072, "NT"), ("proj dX", 256, 3072, 768, "NN"),
          ("proj dW", 768, 3072, 256, "TN"), ("head fwd", 256, 50257, 768, "NT"), ("head dX", 256, 768, 50257, "NN"),
          ("head dW", 50257, 768, 256, "TN"), ("tiny fwd", 2048, 512, 128, "NT"), ("tiny dX", 2048, 128, 512, "NN"),
          ("tiny dW", 512, 128, 2048, "TN"), ("tiny fwd2", 2048, 128, 512, "NT")]
ROW_MAJOR, PLAIN, TRANSPOSED = 101, 111, 112


def main():
    blas = ctypes.CDLL(sys.argv[1])
    blas.openblas_set_num_threads(2)
    pointer = lambda a: a.ctypes.data_as(ctypes.c_void_p)
    rng = np.random.default_rng(0)
    for name, m, n, k, form in SHAPES:
        a = rng.standard_normal((k, m) if form[0] == "T" else (m, k), np.float32)
        b = rng.standard_normal((n, k) if form[1] == "T" else (k, n), np.float32)
        c = np.zeros((m, n), np.float32)
        seconds = []
        for _ in range(9):
            start = time.perf_counter()
            blas.cblas_sgemm(ROW_MAJOR, TRANSPOSED if form[0] == "T" else PLAIN, TRANSPOSED if form[1] == "T" else PLAIN, m, n, k,
                             ctypes.c_float(1), pointer(a), a.shape[1], pointer(b), b.shape[1], ctypes.c_float(0), pointer(c), n)
            seconds.append(time.perf_counter() - start)
        print(f"{name}\t{2 * m * n * k / statistics.median(seconds[2:]) / 1e9:.1f}")


if __name__ == "__main__":
    main()
