#ifndef CONTRAFLOW_STAGE_API_H
#define CONTRAFLOW_STAGE_API_H

/* Stages of your own. The runtime walks a plan, moves messages, sums gradients over the copies of a
 * stage and places every value. The table of functions below computes a stage, on a CPU or a GPU.
 * C, C++ or an extension of PyTorch may fill it in.
 *
 * Plans of such stages have whole chunks (F, B, W, BW, FB, R), no components: level comm or buffer.
 *
 * On the CPU a call has done its work when it returns, and copies of stages on different ranks are
 * called by different threads at the same time. On a GPU one thread makes all calls, with the
 * device current; a call gives work to the stream (a cudaStream_t; work on other streams must be
 * joined to it by events) and returns without waiting. Only `create` and `begin_step` may then
 * allocate, synchronize, or depend on the number of the step: the work of the other calls is
 * captured once as a CUDA graph and replayed.
 *
 * A function that fails returns a message, which stays valid until the next call with the same
 * stage; the training ends with it. NULL means success. C++ exceptions should not leave it.
 * If `create` fails, it leaves nothing allocated. */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* NOLINTBEGIN(modernize-use-using): this is C. */

/* Grows when an existing field or function changes its meaning. New functions are appended, and
 * `size` tells which of them a table has. */
#define CONTRAFLOW_STAGE_VERSION 1

/* The training that stages are made for. */
typedef struct contraflow_job {
  int32_t stages;       /* of the model */
  int32_t microbatches; /* of a step and replica */
  int32_t replicas;     /* pipelines side by side, on micro-batches of their own; members of an
                         * expert group (--expert-parallel) count as such */
  int32_t on_gpu;       /* 1: memory and work are the current CUDA device's; 0: the host's */
  uint64_t seed;        /* of the training; copies of a stage draw the same parameters from it */
  const char* options;  /* whatever the user gave for them; never NULL */
} contraflow_job;

/* Bytes of one micro-batch, enough for any stage of the job. 0: there is no such value. */
typedef struct contraflow_sizes {
  size_t message;    /* sent between stages: an activation, or its gradient */
  size_t activation; /* kept from forward to backward_input */
  size_t stash;      /* kept from forward to backward_weight, which has nothing else: with what
                      * backward_input puts there for it */
} contraflow_sizes;

/* One copy of a stage. Bidirectional plans have two in each replica, on different ranks. */
typedef struct contraflow_copy {
  int32_t stage;
  int32_t replica;
  int32_t rank;
  int32_t sms;  /* on a GPU: the SMs that its kernels have; else 0 */
  void* stream; /* on a GPU: for the work of `create`; else NULL */
} contraflow_copy;

/* One micro-batch in one stage: its number, and where its values lie. Memory is 64-byte aligned,
 * its contents undefined until a function of the stage writes it, and has the bytes asked for.
 * A value that a call does not get is NULL. */
typedef struct contraflow_cell {
  int32_t microbatch;
  int32_t again;     /* forward: 1 where it is recomputed: output and loss are NULL, all else is as
                      * the first time */
  const void* input; /* forward: from the stage before; not of stage 0 */
  void* output;      /* forward: for the next stage; not of the last */
  void* activation;  /* forward writes, backward_input reads and may change */
  void* stash;       /* forward writes, the others read and may change */
  const void* doutput; /* backward_input: gradient of the output; not of the last stage */
  void* dinput;        /* backward_input: gradient of the input; not of stage 0 */
  float* loss;         /* forward of the last stage: the mean loss of the micro-batch */
} contraflow_cell;

/* A piece of what a stage must keep to go on later: parameters, moments of an optimizer. */
typedef struct contraflow_block {
  const char* name; /* unique in the stage, valid as long as it; letters, digits, '.', '_', '-' */
  void* data;       /* on the GPU: of the device */
  size_t bytes;
} contraflow_block;

typedef struct contraflow_stage_api {
  uint32_t version; /* CONTRAFLOW_STAGE_VERSION */
  uint32_t size;    /* sizeof(contraflow_stage_api) */

  const char* (*sizes)(const contraflow_job* job, contraflow_sizes* sizes);
  /* Makes a copy of a stage, with all that it needs for the training; *stage, which all other calls
   * get, must not be NULL. */
  const char* (*create)(const contraflow_job* job, const contraflow_copy* copy, void** stage);
  void (*destroy)(void* stage);

  /* Before everything else of step 1, 2, ..: gradients become zero; the first and the last stage
   * bring the data of the step to where they compute. */
  const char* (*begin_step)(void* stage, int32_t step, void* stream);

  const char* (*forward)(void* stage, const contraflow_cell* cell, void* stream);
  /* The gradient of the input. The loss of a step is the mean over all micro-batches of all
   * replicas: the last stage scales by 1 / (microbatches * replicas). */
  const char* (*backward_input)(void* stage, const contraflow_cell* cell, void* stream);
  /* Adds to the gradients of the parameters; of the cell it has the stash alone. */
  const char* (*backward_weight)(void* stage, const contraflow_cell* cell, void* stream);
  /* Both in one; NULL: one after the other. */
  const char* (*backward)(void* stage, const contraflow_cell* cell, void* stream);
  /* The forward of one micro-batch and the backward (both gradients) of another, in stages of the
   * same rank, possibly the same one, overlapped as the stages see fit; NULL: one after the other.
   */
  const char* (*forward_backward)(void* forward_stage, const contraflow_cell* forward,
                                  void* backward_stage, const contraflow_cell* backward,
                                  void* stream);

  /* The gradients of the parameters, to be summed over replicas and copies in place, as fp32 of
   * one block. Called once, after `create`; the block stays where it is. */
  const char* (*gradients)(void* stage, float** values, size_t* count);
  /* The optimizer's step, with the gradients as they are then. */
  const char* (*optimizer_step)(void* stage, void* stream);

  /* Block number `index`, 0, 1, ..; beyond the last one data becomes NULL. NULL: there are none.
   * Called after `create` and between steps. */
  const char* (*block)(void* stage, int32_t index, contraflow_block* block);
} contraflow_stage_api;

/* Exports of a shared library of stages, by this name. The table lives as long as the library. */
const contraflow_stage_api* contraflow_stages(void);

/* NOLINTEND(modernize-use-using) */

#ifdef __cplusplus
}
#endif

#endif /* CONTRAFLOW_STAGE_API_H */
