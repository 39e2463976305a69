package watch

const QuestionsSQL = listQuestions
