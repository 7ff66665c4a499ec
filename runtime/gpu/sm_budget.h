#pragma once

namespace contraflow {

/// How the SMs of a GPU are shared: between the devices of a plan that it stands for (a green
/// context each), and in each of them between compute and communication. CTAs of the links and of
/// compute kernels are one a SM.
struct SmBudget {
  int partitions = 1;
  int sms = 0;          ///< of a partition; 0: the whole GPU, which is not partitioned
  int compute = 0;      ///< what compute kernels count on
  int link_ctas = 0;    ///< of a pipeline link (2 to 4 of 132)
  int expert_ctas = 0;  ///< of an exchange among experts (16 to 20 of 132); 0 where there is none
};

/// Smallest partition and its granularity on compute capability 9.0.
inline constexpr int kPartitionSms = 8;

/// For `devices` devices on a GPU of `sms` SMs, in partitions of `wanted` SMs each or, where that
/// is 0, as large as possible. Throws Error, with how many devices or SMs are possible, if they do
/// not fit.
SmBudget BudgetOf(int sms, int devices, bool expert_parallel, int wanted = 0);

}  // namespace contraflow
