package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/client/view"
	"github.com/gemworker/gem/internal/oneline"
	"github.com/gemworker/gem/internal/prose"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
)

const (
	mostQuestions = 1000
	mostShown     = 4000 // characters of a question, and of an approval's arguments
)

func questionsCommand() *cobra.Command {
	var asJSON, all bool
	cmd := &cobra.Command{
		Use:   "questions",
		Short: "List the open questions, and how to answer each",
		Long: `
It lists the open calls to wait.answer, wait.approval and wait.event that your
Postgres role may answer: the asker, the question, the arguments of an approval,
the time, the deadline, the people who may answer, and the command to type.
Questions of rules and handlers come first, then questions of users and of their
models. It prints the first five of each asker, or all with --all.
` + usesDatabase,
		RunE: func(cmd *cobra.Command, _ []string) error {
			db, err := connect(cmd.Context())
			if err != nil {
				return err
			}
			defer db.Close()
			read := client.FirstQuestions
			if all || asJSON {
				read = client.OpenQuestions
			}
			questions, err := read(cmd.Context(), db, mostQuestions)
			if err != nil {
				return refusal(err)
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), append([]client.Question{}, questions...))
			}
			if len(questions) == 0 {
				fmt.Fprintln(cmd.ErrOrStderr(), "No call waits for your answer."+forOthers(cmd.Context(), db))
			}
			for _, q := range questions {
				said := asked(q)
				if more := q.More(); more > 0 && !all {
					said += fmt.Sprintf("\nAnd %d more from this asker: gem questions --all", more)
				}
				if _, err := fmt.Fprintln(cmd.OutOrStdout(), said); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print all of them as a JSON list")
	cmd.Flags().BoolVar(&all, "all", false, "print all questions of each asker")
	return cmd
}

// forOthers counts the open questions that other people may answer. It returns "" if there are none, or if the role
// may not see them.
func forOthers(ctx context.Context, db *pgxpool.Pool) string {
	var n int
	err := view.Read(ctx, db, func(ctx context.Context, db view.DB) (err error) {
		n, err = view.CountQuestions(ctx, db, mostQuestions+1)
		return err
	})
	switch {
	case err != nil || n == 0:
		return ""
	case n > mostQuestions:
		return fmt.Sprintf(" More than %d other questions are open.", mostQuestions)
	case n == 1:
		return " One other question is open."
	}
	return fmt.Sprintf(" %d other questions are open.", n)
}

// asked describes a question: the information that a person needs to decide, and the command that answers it.
func asked(q client.Question) string {
	lines := []string{prose.AskerOf(&q) + ":", prose.Said(q.Text, mostShown)}
	if q.Tool == "wait.approval" {
		shown := printable(string(q.Arguments))
		if len(shown) > mostShown { // the asker chooses the order of the fields
			shown = cut(shown, mostShown) + fmt.Sprintf(" (of %d bytes: see all of it with gem questions --json)", len(shown))
		}
		lines = append(lines, fmt.Sprintf("arguments of %s: %s", oneline.Value(q.About), shown))
	}
	lines = append(lines, "asked "+moment(q.Since))
	if !q.Until.IsZero() {
		lines = append(lines, "until "+moment(q.Until))
	}
	lines = append(lines, "by "+cut(printable(strings.Join(q.By, ", ")), 300))
	if q.Tool == "wait.approval" {
		lines = append(lines, "gem approve "+q.ID+" --reason '…'", "gem deny "+q.ID+" --reason '…'")
	} else {
		lines = append(lines, fmt.Sprintf("gem answer %s %s", q.ID, exampleOf(q.Asks)))
	}
	return strings.Join(slices.DeleteFunc(lines, func(line string) bool { return line == "" }), "\n  ")
}

// exampleOf returns an answer that may fit a schema, quoted for a shell.
func exampleOf(schema json.RawMessage) string {
	var s struct {
		Type       string
		Enum       []json.RawMessage
		Properties map[string]json.RawMessage
	}
	_ = json.Unmarshal(schema, &s)
	switch {
	case len(s.Enum) > 0:
		return prose.Argument(string(s.Enum[0]))
	case s.Type == "string" || s.Type == "":
		return "'…'"
	case s.Type == "boolean":
		return "true"
	case s.Type == "object":
		fields := make([]string, 0, len(s.Properties))
		for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
			value := exampleOf(s.Properties[name])
			if inner, quoted := strings.CutPrefix(value, "'"); quoted {
				if value = strings.TrimSuffix(inner, "'"); value == "…" {
					value = `"…"`
				}
			}
			key, _ := json.Marshal(printable(name))
			fields = append(fields, strings.ReplaceAll(string(key), "'", `'\''`)+": "+value)
		}
		return "'{" + strings.Join(fields, ", ") + "}'"
	}
	return "1"
}

func answerCommand() *cobra.Command {
	var name string
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "answer CALL_ID VALUE",
		Short: "Answer a call that waits for an answer",
		Long: `
VALUE is JSON or a text. It is read as a text if it is not JSON, or if the
question asks for a text. Put -- before a value that begins with -. Repeating
the same answer is allowed. gem questions lists open questions; gem approve and
gem deny answer approvals.

It then waits for the call that asked, or for the question itself if no call
asked, and prints the receipt as JSON. --wait 0 does not wait. The exit code is
0 if the answer is recorded, even if the call then fails.
` + usesDatabase,
		Example: "  gem answer " + exampleID + " 'On Tuesday'\n  gem answer " + exampleID + ` '{"price": 1200}'`,
		Args:    takes("a call id and a value", 2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if wait < 0 {
				return usage("--wait is %s, and must be 0 (do not wait) or more", wait)
			}
			if !utf8.ValidString(args[1]) {
				return usage("the value is not valid UTF-8")
			}
			value := func(c *client.Call) any { return readAnswer(c, args[1]) }
			return give(cmd, args[0], name, value, func(db *pgxpool.Pool, id string) error {
				return decided(cmd, db, id, "answered", wait)
			})
		},
	}
	waitFlag(cmd, &wait)
	cmd.Flags().StringVar(&name, "name", "", "the name that the handler receives, for a call that is not a question")
	return cmd
}

// readAnswer reads the value of a command's argument in the form that the call asks for.
func readAnswer(c *client.Call, arg string) any {
	var question struct{ Schema struct{ Type string } }
	if json.Unmarshal(c.Input, &question) != nil || question.Schema.Type == "" && c.Tool == "wait.answer" {
		question.Schema.Type = "string"
	}
	var text string
	isText := json.Unmarshal([]byte(arg), &text) == nil
	if !json.Valid([]byte(arg)) || isQuestion(c.Tool) && question.Schema.Type == "string" && !isText {
		return arg
	}
	return json.RawMessage(arg)
}

// give answers a call with the value that answer returns for its row, and then calls next.
func give(cmd *cobra.Command, arg, name string, answer func(*client.Call) any,
	next func(db *pgxpool.Pool, id string) error) error {
	ctx := cmd.Context()
	id, err := callID(arg)
	if err != nil {
		return err
	}
	db, err := connect(ctx)
	if err != nil {
		return err
	}
	defer db.Close()
	c, err := client.Get(ctx, db, id)
	if err != nil {
		return refusal(err)
	}
	if name == "" && !isQuestion(c.Tool) {
		return asksNothing(ctx, db, c)
	}
	value := answer(c)
	_, decision := value.(map[string]any)
	if approval := c.Tool == "wait.approval"; approval && !decision {
		return fmt.Errorf("call %[1]s asks for an approval: gem approve %[1]s, or gem deny", id)
	} else if decision && !approval {
		return fmt.Errorf("call %[1]s is not an approval: gem answer %[1]s VALUE", id)
	}
	before, err := view.OneQuestion(ctx, db, id)
	if err != nil {
		return refusal(err)
	}
	err = client.Answer(ctx, db, id, value, name)
	if errors.Is(err, client.ErrMayNotAnswer) {
		return mayNot(ctx, db, c)
	}
	if err != nil && !decidedAlike(err, id, value) {
		return refusal(err)
	}
	switch {
	case err != nil:
		fmt.Fprintln(cmd.ErrOrStderr(), refusal(err))
	case before != nil && before.AnsweredBy != "":
		fmt.Fprintf(cmd.ErrOrStderr(), "call %s already had this answer, by %s at %s\n", id,
			cut(printable(before.AnsweredBy), 200), moment(before.AnsweredAt))
	}
	return next(db, id)
}

// decidedAlike reports whether a decision was rejected because the same decision was recorded before.
func decidedAlike(err error, id string, value any) bool {
	decision, _ := value.(map[string]any)
	approved, isDecision := decision["approved"].(bool)
	done := map[bool]string{true: "approved", false: "denied"}[approved]
	var pgErr *pgconn.PgError
	return isDecision && errors.As(err, &pgErr) && pgErr.Code == "PT409" &&
		strings.HasPrefix(pgErr.Message, "call "+id+" was already "+done+" by ")
}

// asksNothing returns the error for a call that does not ask. It names the questions and answers that the call waits
// for.
func asksNothing(ctx context.Context, db *pgxpool.Pool, c *client.Call) error {
	var open []string
	questions, err := client.OpenQuestionsAbout(ctx, db, c.ID, mostAsked)
	if err != nil {
		return refusal(err)
	}
	for _, q := range questions {
		open = append(open, "It waits for the answer to this question:\n"+asked(q))
	}
	e, err := client.Explain(ctx, db, c.ID)
	if err != nil {
		return refusal(err)
	}
	for _, name := range e.Answers {
		open = append(open, "It waits for an answer under a name: add --name "+prose.Argument(name))
	}
	if len(open) == 0 {
		open = append(open, "Your questions: gem questions")
	}
	return fmt.Errorf("call %s, of %s, is not a question. %s", c.ID, cut(printable(c.Tool), 200), strings.Join(open, "\n"))
}

var roleForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$`)

// mayNot returns the error for a role that may not answer; it names the people who may.
func mayNot(ctx context.Context, db *pgxpool.Pool, c *client.Call) error {
	var role string
	if err := db.QueryRow(ctx, "select session_user::text").Scan(&role); err != nil {
		return refusal(err)
	}
	var by struct {
		By     []string
		Others *bool
	}
	_ = json.Unmarshal(c.Input, &by)
	hint := ""
	for _, who := range by.By {
		if name, ok := strings.CutPrefix(who, "role:"); ok && roleForm.MatchString(name) {
			hint = fmt.Sprintf(". The owner of the database gives you the role with: gem roles add %s %s", role, name)
		}
	}
	except := ""
	if c.Tool == "wait.approval" && by.Others == nil || by.Others != nil && *by.Others {
		except = ", except the person who made the call"
	}
	return fmt.Errorf("you are %s, and only %s may answer it%s%s", role, prose.Answerers(by.By), except, hint)
}

func resumeCommand() *cobra.Command {
	return aboutCall(&cobra.Command{
		Use:   "resume",
		Short: "Let a waiting call check again whether it can continue",
		Long: `
Its handler runs again, up to where it waits. Operations in its journal are not
repeated. gem explain shows why a call waits.`,
	}, func(ctx context.Context, db *pgxpool.Pool, id string, out io.Writer) error {
		resumed, err := client.Resume(ctx, db, id)
		switch {
		case err != nil:
			return err
		case !resumed:
			return fmt.Errorf("its handler does not wait for anything. Why the call does not continue: gem "+
				"explain %s", id)
		}
		_, err = fmt.Fprintln(out, "resumed: the call is in the queue")
		return err
	})
}
