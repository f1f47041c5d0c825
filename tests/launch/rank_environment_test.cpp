#include "launch/rank_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "base/error.h"

namespace baleen {
namespace {

using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

RankEnvironment detect(const Variables& variables, int parent = 4242) {
  return detect_ranks(
      [&](const char* name) {
        const auto found = variables.find(name);
        return found == variables.end() ? nullptr : found->second.c_str();
      },
      parent);
}

void expect_refused(const Variables& variables, const std::string& variable) {
  try {
    detect(variables);
    ADD_FAILURE() << "accepted; expected a refusal of " << variable;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_config);
    EXPECT_EQ(error.where(), "environment variable " + variable) << error.what();
  }
}

TEST(RankEnvironment, NothingSetIsOneRank) {
  const RankEnvironment me = detect({});
  EXPECT_EQ(me.source, RankSource::single);
  EXPECT_EQ(me.size, 1);
}

TEST(RankEnvironment, OurOwnLauncher) {
  const Variables ours{
      {"BALEEN_RANK", "2"}, {"BALEEN_WORLD_SIZE", "4"}, {"BALEEN_REGION_DESCRIPTOR", "5"}, {"BALEEN_LAUNCHER_PID", "4242"}};
  const RankEnvironment me = detect(ours);
  EXPECT_EQ(me.source, RankSource::baleen);
  EXPECT_EQ(me.rank, 2);
  EXPECT_EQ(me.size, 4);
  EXPECT_EQ(me.local_rank, 2);
  EXPECT_EQ(me.region_descriptor, 5);
  Variables other_parent = ours;
  other_parent["BALEEN_LAUNCHER_PID"] = "4243";
  expect_refused(other_parent, "BALEEN_LAUNCHER_PID");
  for (const char* name : {"BALEEN_WORLD_SIZE", "BALEEN_REGION_DESCRIPTOR", "BALEEN_LAUNCHER_PID"}) {
    Variables missing = ours;
    missing.erase(name);
    expect_refused(missing, name);
  }
}

const Variables torchrun{
    {"RANK", "5"},           {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "4"}, {"MASTER_ADDR", "10.0.0.1"},
    {"MASTER_PORT", "29500"}};

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

TEST(RankEnvironment, Torchrun) {
  const RankEnvironment me = detect(torchrun);
  EXPECT_EQ(me.source, RankSource::torchrun);
  EXPECT_EQ(me.rank, 5);
  EXPECT_EQ(me.size, 8);
  EXPECT_EQ(me.local_rank, 1);
  EXPECT_EQ(me.local_size, 4);
  EXPECT_NE(me.job, detect(with(torchrun, "MASTER_PORT", "29501")).job);
  // Each machine counts its own restarts; on one they keep its generations apart.
  EXPECT_EQ(me.job, detect(with(torchrun, "TORCHELASTIC_RESTART_COUNT", "1")).job);
  const Variables alone = with(with(torchrun, "LOCAL_WORLD_SIZE", "8"), "LOCAL_RANK", "5");
  EXPECT_NE(detect(alone).job, detect(with(alone, "TORCHELASTIC_RESTART_COUNT", "1")).job);
  EXPECT_EQ(me.job, detect(with(torchrun, "RANK", "6")).job);
}

TEST(RankEnvironment, AnUnknownPlaceOnTheMachineIsTheRank) {
  const Variables nowhere{{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "29500"}};
  EXPECT_EQ(detect(nowhere).local_rank, 5);
  EXPECT_EQ(detect(nowhere).local_size, 0);
  EXPECT_EQ(detect(with(nowhere, "LOCAL_RANK", "1")).local_rank, 1);
  EXPECT_EQ(detect(with(nowhere, "LOCAL_WORLD_SIZE", "1")).local_rank, 0);
}

TEST(RankEnvironment, ContradictionsAreRefusedByName) {
  expect_refused(with(torchrun, "RANK", "8"), "RANK");
  expect_refused(with(torchrun, "RANK", "-1"), "RANK");
  expect_refused(with(torchrun, "RANK", "abc"), "RANK");
  expect_refused(with(torchrun, "RANK", "1x"), "RANK");
  expect_refused(with(torchrun, "RANK", ""), "RANK");
  expect_refused(with(torchrun, "RANK", "99999999999999999999"), "RANK");
  expect_refused(with(torchrun, "WORLD_SIZE", "0"), "WORLD_SIZE");
  expect_refused(with(torchrun, "LOCAL_RANK", "4"), "LOCAL_RANK");
  expect_refused(with(torchrun, "LOCAL_WORLD_SIZE", "9"), "LOCAL_WORLD_SIZE");
  expect_refused(with(torchrun, "MASTER_PORT", "70000"), "MASTER_PORT");
  expect_refused({{"RANK", "0"}}, "WORLD_SIZE");
  expect_refused({{"WORLD_SIZE", "2"}}, "RANK");
  expect_refused({{"RANK", "0"}, {"WORLD_SIZE", "2"}}, "MASTER_PORT");
}

TEST(RankEnvironment, OpenMpi) {
  const Variables mpi{{"OMPI_COMM_WORLD_RANK", "1"},
                      {"OMPI_COMM_WORLD_SIZE", "2"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                      {"OMPI_MCA_ess_base_jobid", "12345"}};
  const RankEnvironment me = detect(mpi);
  EXPECT_EQ(me.source, RankSource::open_mpi);
  EXPECT_EQ(me.rank, 1);
  EXPECT_EQ(me.local_size, 2);
  EXPECT_THAT(me.job, HasSubstr("12345"));
  // Without a name from Open MPI the ranks of one machine share their parent, those of several their meeting place.
  Variables nameless = with(with(mpi, "MASTER_ADDR", "10.0.0.1"), "MASTER_PORT", "29500");
  nameless.erase("OMPI_MCA_ess_base_jobid");
  EXPECT_NE(detect(nameless, 100).job, detect(nameless, 200).job);
  const Variables apart = with(with(nameless, "OMPI_COMM_WORLD_LOCAL_SIZE", "1"), "OMPI_COMM_WORLD_LOCAL_RANK", "0");
  EXPECT_EQ(detect(apart, 100).job, detect(apart, 200).job);
  EXPECT_NE(detect(apart, 100).job, detect(with(apart, "MASTER_PORT", "29501"), 100).job);
  expect_refused(with(mpi, "OMPI_COMM_WORLD_RANK", "2"), "OMPI_COMM_WORLD_RANK");
  EXPECT_EQ(detect(with(with(mpi, "RANK", "0"), "WORLD_SIZE", "1")).source, RankSource::torchrun);  // the inner launcher
}

TEST(RankEnvironment, Mpich) {
  const Variables mpich{{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
  const RankEnvironment me = detect(mpich);
  EXPECT_EQ(me.source, RankSource::mpich);
  EXPECT_EQ(me.rank, 3);
  EXPECT_EQ(me.size, 4);
  EXPECT_EQ(me.local_rank, 1);
  EXPECT_EQ(me.local_size, 2);
  expect_refused(with(mpich, "PMI_RANK", "4"), "PMI_RANK");
  // Ranks of several machines have other parents.
  const Variables met = with(with(mpich, "MASTER_ADDR", "10.0.0.1"), "MASTER_PORT", "29500");
  EXPECT_EQ(detect(met, 100).job, detect(met, 200).job);
  const Variables near = with(met, "MPI_LOCALNRANKS", "4");
  EXPECT_NE(detect(near, 100).job, detect(near, 200).job);
  expect_refused(with(mpich, "MPI_LOCALRANKID", "2"), "MPI_LOCALRANKID");
  // Hydra's helpers are tasks of srun inside an allocation; srun itself may set PMI's variables.
  const Variables step = with(with(mpich, "SLURM_PROCID", "0"), "SLURM_STEP_NODELIST", "node1");
  EXPECT_EQ(detect(with(step, "SLURM_NTASKS", "2")).source, RankSource::mpich);
  EXPECT_EQ(
      detect({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_STEP_NODELIST", "n"}}).source,
      RankSource::slurm);
}

TEST(RankEnvironment, Slurm) {
  const Variables slurm{{"SLURM_PROCID", "4"},
                        {"SLURM_NTASKS", "5"},
                        {"SLURM_LOCALID", "0"},
                        {"SLURM_STEP_NODELIST", "node[1-3]"},
                        {"SLURM_STEP_NUM_NODES", "3"},
                        {"SLURM_NODEID", "2"},
                        {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"},
                        {"SLURM_JOB_ID", "77"},
                        {"SLURM_STEP_ID", "0"}};
  const RankEnvironment me = detect(slurm);
  EXPECT_EQ(me.source, RankSource::slurm);
  EXPECT_EQ(me.rank, 4);
  EXPECT_EQ(me.local_size, 1);
  EXPECT_EQ(detect(with(slurm, "SLURM_NODEID", "1")).local_size, 2);
  EXPECT_EQ(me.cores_per_rank, 0);
  EXPECT_EQ(detect(with(slurm, "SLURM_CPUS_PER_TASK", "16")).cores_per_rank, 16);
  expect_refused(with(slurm, "SLURM_CPUS_PER_TASK", "many"), "SLURM_CPUS_PER_TASK");
  EXPECT_EQ(detect(with(slurm, "SLURM_STEP_NUM_NODES", "1")).local_size, 5);
  EXPECT_EQ(detect(with(slurm, "SLURM_STEP_TASKS_PER_NODE", "?")).local_size, 0);
  expect_refused(with(slurm, "SLURM_PROCID", "5"), "SLURM_PROCID");
  // A step of fewer tasks than the job.
  EXPECT_EQ(detect(with(with(slurm, "SLURM_NTASKS", "64"), "SLURM_STEP_NUM_TASKS", "5")).size, 5);
  expect_refused(with(slurm, "SLURM_STEP_NUM_TASKS", "4"), "SLURM_PROCID");
  expect_refused(with(slurm, "SLURM_LOCALID", "5"), "SLURM_LOCALID");
  // A shell under `srun --pty`.
  EXPECT_EQ(detect(with(with(slurm, "SLURM_NTASKS", "1"), "SLURM_PROCID", "0")).source, RankSource::single);
  Variables script = slurm;  // inside a batch script, outside srun: not a rank
  script.erase("SLURM_STEP_NODELIST");
  EXPECT_EQ(detect(script).source, RankSource::single);
}

}  // namespace
}  // namespace baleen
