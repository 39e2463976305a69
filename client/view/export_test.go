package view

const QuestionsSQL = listQuestions
