#include "compiler/plan/instruction.h"

#include <doctest/doctest.h>

#include <random>
#include <string>

#include "compiler/plan/error.h"
#include "tests/support/failure.h"
#include "tests/support/sanitized.h"

namespace contraflow::instruction_test {
namespace {

std::string ParseFailure(const std::string& text) {
  return Failure([&] { ParseInstruction(text); });
}

TEST_SUITE("unit") {
  TEST_CASE("instructions read as in DESIGN section 2") {
    CHECK(ToString(CellOp(Op::F, 3, 7)) == "F s3 m7");
    CHECK(ToString(CellOp(Op::BW, 3, 7)) == "BW s3 m7");
    CHECK(ToString(Pair(3, 7, 4, 2)) == "FB s3 m7 + s4 m2");
    CHECK(ToString(Message(Op::SEND_F, 3, 7, 4)) == "SEND_F s3 m7 to=4");
    CHECK(ToString(Message(Op::RECV_B, 3, 7, 4)) == "RECV_B s3 m7 from=4");
    CHECK(ToString(StageOp(Op::REDUCE, 3)) == "REDUCE s3");
    Instruction dispatch{.op = Op::DISPATCH_F, .layer = 0, .stage = 3, .microbatch = 7};
    CHECK(ToString(dispatch) == "DISPATCH_F s3 l0 m7");
    dispatch.slot = 5;
    dispatch.lane = Lane::kAllToAll;
    dispatch.after_count = 2;
    dispatch.after = {4, 9};
    CHECK(ToString(dispatch) == "DISPATCH_F s3 l0 m7 slot=5 lane=alltoall after=4,9");
    CHECK(ParseInstruction("SEND_B s4 m7 to=3 group=1") ==
          Instruction{.op = Op::SEND_B, .stage = 4, .microbatch = 7, .peer = 3, .group = 1});
    CHECK(ParseInstruction("SEND_B s4 m7 group=1 to=3") ==
          ParseInstruction("SEND_B s4 m7 to=3 group=1"));
  }

  TEST_CASE("a wrong instruction gives one clear error") {
    CHECK(ParseFailure("") == "instruction \"\": ends where an operation should follow");
    CHECK(ParseFailure("SEND_G s1 m2 to=1") ==
          "instruction \"SEND_G s1 m2 to=1\": unknown operation \"SEND_G\" (did you mean "
          "\"SEND_F\"?)");
    CHECK(ParseFailure("F s1") == "instruction \"F s1\": ends where \"mN\" should follow");
    CHECK(ParseFailure("F m1 s1") == "instruction \"F m1 s1\": expected \"sN\", found \"m1\"");
    CHECK(ParseFailure("F s1 m-2") ==
          "instruction \"F s1 m-2\": \"m-2\" needs a whole number from 0 to 2147483647");
    CHECK(ParseFailure("F s1 m2147483648") ==
          "instruction \"F s1 m2147483648\": \"m2147483648\" needs a whole number from 0 to "
          "2147483647");
    CHECK(ParseFailure("F s01 m2") ==
          "instruction \"F s01 m2\": \"s01\" needs a whole number from 0 to 2147483647");
    CHECK(ParseFailure("F  s1 m2") ==
          "instruction \"F  s1 m2\": words are separated by exactly one space");
    CHECK(ParseFailure("F s1 m2 ") == "instruction \"F s1 m2 \": ends with a space");
    CHECK(ParseFailure("FB s1 m2 s2 m1") ==
          "instruction \"FB s1 m2 s2 m1\": expected \"+\" between the two cells");
    CHECK(ParseFailure("SEND_F s1 m2") ==
          "instruction \"SEND_F s1 m2\": missing the peer (to=RANK)");
    CHECK(ParseFailure("RECV_F s1 m2 to=1") ==
          "instruction \"RECV_F s1 m2 to=1\": unknown or misplaced key \"to\"");
    CHECK(ParseFailure("F s1 m2 slott=1") ==
          "instruction \"F s1 m2 slott=1\": unknown or misplaced key \"slott\" (did you mean "
          "\"slot\"?)");
    CHECK(ParseFailure("F s1 m2 slot=1 slot=1") ==
          "instruction \"F s1 m2 slot=1 slot=1\": \"slot=1\" repeats a key");
    CHECK(ParseFailure("F s1 m2 lane=fast") ==
          "instruction \"F s1 m2 lane=fast\": unknown lane \"fast\"; lanes are compute, alltoall, "
          "send, recv, reduce");
    CHECK(ParseFailure("F s1 m2 after=2,1") ==
          "instruction \"F s1 m2 after=2,1\": \"after\" must be ascending");
    CHECK(ParseFailure("F s1 m2 after=1,2,3,4,5,6,7") ==
          "instruction \"F s1 m2 after=1,2,3,4,5,6,7\": \"after\" has more than 6 entries; one for "
          "each other lane is enough");
    CHECK(ParseFailure("ATTN_F s1 l40000 m2") ==
          "instruction \"ATTN_F s1 l40000 m2\": layer 40000 is over 32767");
    CHECK(ParseFailure(std::string(200, 'x')).size() < 200);
  }

  TEST_CASE("text and instruction correspond one to one") {
    std::mt19937 random(1);
    const auto draw = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(random);
    };
    const int ops = static_cast<int>(Op::COMBINE_R) + 1;
    for (int round = 0; round < CasesToDraw(20'000); ++round) {
      Instruction i;
      i.op = static_cast<Op>(round % ops);
      const Operands operands = OperandsOf(i.op);
      i.stage = draw(0, 1 << draw(0, 30));
      if (operands != Operands::kStage) i.microbatch = draw(0, 1 << draw(0, 30));
      if (operands == Operands::kPair) i.back_stage = draw(0, 99);
      if (operands == Operands::kPair) i.back_microbatch = draw(0, 99);
      if (operands == Operands::kMessage) i.peer = draw(0, 99);
      if (operands == Operands::kLayer) i.layer = static_cast<int16_t>(draw(0, 99));
      if (draw(0, 1) == 0) i.group = draw(0, 99);
      if (draw(0, 1) == 0) i.slot = draw(0, 99);
      if (draw(0, 1) == 0) i.lane = static_cast<Lane>(draw(1, 4));
      i.after_count = static_cast<uint8_t>(draw(0, kMaxAfter));
      for (int k = 0, last = 0; k < i.after_count; ++k) {
        i.after[static_cast<size_t>(k)] = last = last + draw(1, 9);
      }
      const std::string text = ToString(i);
      CAPTURE(text);
      CHECK(ParseInstruction(text) == i);
      // Any one character changed either fails or means something else, which prints as that text.
      std::string other = text;
      other[static_cast<size_t>(draw(0, static_cast<int>(text.size()) - 1))] =
          static_cast<char>(draw(32, 126));
      try {
        const Instruction parsed = ParseInstruction(other);
        if (other != text) CHECK(parsed != i);
      } catch (const Error&) {
      }
    }
  }
}

}  // namespace
}  // namespace contraflow::instruction_test
