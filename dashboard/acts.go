package dashboard

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"net/http"
	"strings"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/client/view"
	"github.com/jackc/pgx/v5/pgtype"
)

// operator returns the user under the name for the journal, with the reason from the form. It returns an error if the
// user may not act.
func (r *request) operator() (client.Operator, error) {
	switch {
	case r.site.Act == nil:
		return client.Operator{}, forbidden("This dashboard is read-only: it has no connection that may act.")
	case !r.user.Operator:
		return client.Operator{}, forbidden("Only operators may do this.")
	}
	// Answers carry the same name, so that nobody approves their own request.
	return client.Operator{By: cmp.Or(r.user.Subject, r.user.Name), Reason: r.PostForm.Get("reason")}, nil
}

// act returns the operator, and the id of the call in the path.
func (r *request) act() (who client.Operator, id string, err error) {
	if who, err = r.operator(); err != nil {
		return who, "", err
	}
	if id = r.PathValue("id"); !view.IsID(id) {
		return who, "", notFound("This call does not exist: call ids are UUIDs.")
	}
	return who, strings.ToLower(id), nil
}

// idOf returns the id of the call that a form makes from another one. It is the same however often the form is sent,
// and to any process.
func idOf(form, call string) string {
	sum := sha256.Sum256([]byte(form + " " + call))
	u := pgtype.UUID{Bytes: [16]byte(sum[:16]), Valid: true}
	u.Bytes[6] = u.Bytes[6]&0x0f | 0x80 // version 8: custom
	u.Bytes[8] = u.Bytes[8]&0x3f | 0x80
	return u.String()
}

// cancelPage is the data of the page that asks to confirm the cancellation of a call.
type cancelPage struct {
	Call   *view.Call
	Reason string
	Fault  string
}

// askCancel shows the effects of cancelling a call.
func (s *site) askCancel(ctx context.Context, r *request) (*content, error) {
	_, id, err := r.act()
	if err != nil {
		return nil, err
	}
	e := cancelPage{Reason: r.PostForm.Get("reason")}
	err = view.Read(ctx, r.db(), func(ctx context.Context, db view.DB) error {
		e.Call, err = view.Get(ctx, db, id)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &content{Title: "Cancel a " + e.Call.Status + " call", Template: "cancel", Data: &e}, nil
}

// cancel ends a call, or asks its worker to end it.
func (s *site) cancel(ctx context.Context, r *request) (to, done string, err error) {
	who, id, err := r.act()
	if err != nil {
		return "", "", err
	}
	outcomes, err := client.OperatorCancel(ctx, s.Act, []string{id}, who, r.PostForm.Get("at_once") != "")
	if err != nil {
		return "", "", s.again(ctx, r, err, s.askCancel)
	}
	to = "/calls/" + id
	switch outcome := outcomes[0].Outcome; outcome {
	case client.Cancelled:
		return to, "The call was cancelled. It has ended.", nil
	case client.CancelRequested:
		return to, "Cancellation was requested. The handler may clean up first, and the call may still succeed.", nil
	case client.CancelUnknown:
		return "", "", &client.NotFoundError{ID: id}
	case client.CancelBusy:
		err = conflict("The call is being changed right now. Nothing was done: try again.")
	default:
		err = conflict("The call had already ended: it %s. Nothing was changed.", endedAs(string(outcome)))
	}
	return "", "", s.again(ctx, r, err, s.askCancel)
}

// endedAs completes a sentence about the end of a call that begins with "it".
func endedAs(status string) string {
	if status == "not_configured" {
		return "was not configured"
	}
	return status
}

// repetition is the data of the page that confirms a repetition.
type repetition struct {
	*client.RepeatPreview
	Confirm, Reason string
	Fault           string
}

// askAgain shows the effects of repeating a call.
func (s *site) askAgain(ctx context.Context, r *request) (*content, error) {
	_, id, err := r.act()
	if err != nil {
		return nil, err
	}
	p := repetition{Confirm: r.PostForm.Get("confirm"), Reason: r.PostForm.Get("reason")}
	err = view.Read(ctx, s.Act, func(ctx context.Context, db view.DB) error {
		p.RepeatPreview, err = client.PreviewRepeat(ctx, db, id)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &content{Title: "Run this call again", Template: "again", Data: &p}, nil
}

// doAgain repeats a call, and redirects to the new one.
func (s *site) doAgain(ctx context.Context, r *request) (to, done string, err error) {
	who, id, err := r.act()
	if err != nil {
		return "", "", err
	}
	made, err := client.OperatorRepeat(ctx, s.Act, id,
		client.RepeatOptions{Operator: who, Confirm: r.PostForm.Get("confirm"), NewID: idOf(r.PostForm.Get("form"), id)})
	if err != nil {
		return "", "", s.again(ctx, r, err, s.askAgain)
	}
	return "/calls/" + made, "This is the new call. The earlier one, " + id + ", is unchanged.", nil
}

// faulty is page data that can show why its form was rejected.
type faulty interface{ fault(string) }

func (e *cancelPage) fault(why string) { e.Fault = why }
func (p *repetition) fault(why string) { p.Fault = why }

// again shows the page of a form again, with the typed values and the reason for the rejection, if the user can
// correct the form. Otherwise it returns err.
func (s *site) again(ctx context.Context, r *request, err error,
	ask func(context.Context, *request) (*content, error)) error {
	refused := refusalOf(err)
	if refused == nil || refused.status == http.StatusNotFound {
		return err
	}
	v, failed := ask(ctx, r)
	if failed != nil {
		return errors.Join(err, failed)
	}
	v.Data.(faulty).fault(refused.text)
	v.Status = refused.status
	return &pageAgain{v}
}
