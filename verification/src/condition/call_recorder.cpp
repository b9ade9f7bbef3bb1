// The attention and selection calls that evaluate() makes, recorded on their way to the backend.
#include "condition/condition.hpp"

namespace dsalt::verification {

void CallRecorder::attention_forward(const AttentionProblem& problem, const AttentionInputs& inputs,
                                     const AttentionOutputs& outputs) {
  attention_problem = problem;
  attention_inputs = inputs;
  target().attention_forward(problem, inputs, outputs);
}

void CallRecorder::attention_backward(const AttentionProblem& problem, const AttentionInputs& inputs,
                                      const AttentionSaved& saved, const AttentionGradients& gradients) {
  attention_saved = saved;
  target().attention_backward(problem, inputs, saved, gradients);
}

void CallRecorder::select_landmarks_forward(const SelectionProblem& problem, const SelectionInputs& inputs,
                                            const SelectionOutputs& outputs) {
  selection_problem = problem;
  selection_inputs = inputs;
  target().select_landmarks_forward(problem, inputs, outputs);
}

void CallRecorder::select_landmarks_backward(const SelectionProblem& problem, const SelectionInputs& inputs,
                                             const SelectionSaved& saved, const SelectionGradients& gradients) {
  selection_saved = saved;
  target().select_landmarks_backward(problem, inputs, saved, gradients);
}

}  // namespace dsalt::verification
